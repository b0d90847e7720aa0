"""The command line: argv -> text for people, JSON for programs. One file per command; it parses, calls and prints."""
