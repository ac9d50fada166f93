# Writes OUTPUT, which holds the files NAMES of FOLDER (separated by commas) as texts, for app/page/page_files.hpp.
string(REPLACE "," ";" NAMES "${NAMES}")
set(entries "")
foreach(name IN LISTS NAMES)
  file(READ ${FOLDER}/${name} text)
  if(text MATCHES "\\)gradsync_page\"")
    message(FATAL_ERROR "${FOLDER}/${name} has the end of a C++ text in it, )gradsync_page\"; write it another way")
  endif()
  string(APPEND entries "    {\"${name}\", R\"gradsync_page(${text})gradsync_page\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Written by service/app/page/page_files.cmake.
#include \"app/page/page_files.hpp\"

namespace gradsync::app {

std::span<const PageFile> page_files() {
  static constexpr PageFile kFiles[] = {
${entries}  };
  return kFiles;
}

}  // namespace gradsync::app
")
