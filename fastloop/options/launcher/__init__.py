"""`launcher=`: how the processes of a trial are started; each option satisfies the Protocol
Launcher."""
