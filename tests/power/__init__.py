"""Power loss: histories on a file system that forgets what was not fsynced, and a judge of what is left."""
