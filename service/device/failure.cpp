#include "device/failure.hpp"

#include "device/device_error.hpp"
#include "device/step/stats_finish.hpp"

#include <exception>
#include <new>

namespace gradsync::device {

Failed failure_by_exception(Failed about) {
  try {
    throw;
  } catch (const RowError& error) {
    about.message = error.what();
    about.row = FailedRow{error.tensor(), error.rank(), error.field()};
  } catch (const DeviceError& error) {
    about.message = error.what();
    about.aborted = error.kind() == DeviceError::Kind::Aborted;
    about.out_of_memory = error.kind() == DeviceError::Kind::OutOfMemory;
    about.lane_lost = error.kind() == DeviceError::Kind::DeviceLost;
    about.wire_lost = error.kind() == DeviceError::Kind::WireLost;
    about.unsupported = error.kind() == DeviceError::Kind::Unsupported;
    about.hint = error.hint();
    about.node = error.node();
  } catch (const std::bad_alloc&) {
    about.message = "out of memory";
    about.out_of_memory = true;
  } catch (const std::exception& error) {
    about.message = error.what();
  }
  return about;
}

}  // namespace gradsync::device
