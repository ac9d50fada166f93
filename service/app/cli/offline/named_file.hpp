#pragma once
// Files that the command line names. Where one of them cannot be used, the user is told which, why and what to do.

#include <fstream>
#include <string>

namespace gradsync::app {

/// Opens a file to read it. False: it cannot be read, or is a folder, and the user was told.
[[nodiscard]] bool open_to_read(std::ifstream& stream, const std::string& file, const std::string& hint);

/// Tells the user what `errno` says of a file; `verb` is what was tried, as "write". Returns the exit code.
int refuse_file(const std::string& verb, const std::string& file, const std::string& hint);

}  // namespace gradsync::app
