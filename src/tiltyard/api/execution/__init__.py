"""Where operations run: on the event loop, in pools of threads, or together with others of their kind."""
