"""A server as Python's library has it: ADDRESS PORT CHAIN MODE. It prints "ready" when it listens."""
import http.server
import socketserver
import ssl
import sys

address, port, chain, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0" if mode == "http10" else "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if mode == "error":
            self.send_error(404, "not here")
            return
        self.send_response(200)
        if mode == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (b"1\r\no\r\n", b"1\r\nk\r\n", b"0\r\n\r\n"):
                self.wfile.write(piece)
            return
        if mode != "http10":
            self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


server = Server((address, port), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(chain)
if mode == "certificate":
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(chain)
if mode == "unwrapped":
    # The connection ends without close_notify, as with many servers.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
