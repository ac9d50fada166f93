// The one compiled copy of the parts of Beast that are not templates (BOOST_BEAST_SEPARATE_COMPILATION).
#include <boost/beast/src.hpp>
