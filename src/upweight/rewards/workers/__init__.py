"""Work in processes that can be killed: a time limit, limits on memory, processes and output, and no orphans."""
