"""Starting daemon, engine and gateway as processes, with secrets that die with the launch."""
