"""Commands that bring files into tables and tables into files."""
