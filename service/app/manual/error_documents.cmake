# Writes OUTPUT from TEMPLATE with the documents ERRORS and FAILURES as texts.
file(READ "${ERRORS}" errors)
file(READ "${FAILURES}" failures)
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
