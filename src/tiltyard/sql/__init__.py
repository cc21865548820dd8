"""SQL over the tables of the catalog: Apache DataFusion plans and runs it, over tables as their reader may see them."""
