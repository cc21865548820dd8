"""The file that spark-submit runs, in a folder of its own: Python looks for modules in the folder of that file."""
