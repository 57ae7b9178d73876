"""A warm parent of the prediction service: forks one process that serves for each connection, and says its pid.

The usual way to start such a service fast without a checkpoint. Usage: parent.py PORT --control HOST:PORT
"""

import os
import signal
import socket
import sys

import app


def main():
    """Until it is ended."""
    port, control = int(sys.argv[1]), int(sys.argv[3].rpartition(":")[2])
    app.predict(1.0)  # what is loaded by the first prediction is then there
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel reaps
    with socket.create_server(("127.0.0.1", control)) as listener:
        while True:
            client, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                client.close()
                app.serve(port)
                os._exit(0)
            client.sendall(f"{pid}\n".encode())
            client.close()


if __name__ == "__main__":
    main()
