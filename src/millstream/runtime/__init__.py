"""This machine: the home folder, ports, logging, Java, jars and child processes."""
