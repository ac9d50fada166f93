# Runs at each build: writes OUTPUT from TEMPLATE with the commit that is checked out in SOURCES, or with GIVEN. A file
# that would not change stays as it is, so that nothing is compiled.
set(commit "${GIVEN}")
if(NOT commit AND EXISTS ${SOURCES}/.git)  # not the repository of someone who unpacked the sources inside of it
  execute_process(COMMAND git --git-dir=${SOURCES}/.git rev-parse --verify HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit MATCHES "^[0-9a-f]+$")
  string(SUBSTRING ${commit} 0 12 commit)
elseif(GIVEN)
  message(FATAL_ERROR "GRADSYNC_COMMIT='${GIVEN}' is not a commit; give its hexadecimal digits, or nothing")
else()
  set(commit unknown)
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
