"""C sources of the CPU library, its build script and the prebuilt result."""
