"""What spark-submit runs. It has a folder of its own because Python looks for modules beside the file that it runs."""
