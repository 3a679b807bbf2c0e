"""Runs the block of docs/clients.md that turns webhooks into mail, saved as page.py, with a relay that keeps what it is
given. What the webhook driver really sent (HOOK_REQUEST) arrives twice and becomes one mail; changed, it is refused. Prints
the notification's id."""

import json
import os
import socketserver
import threading
import urllib.error
import urllib.request

mails = []


class Relay(socketserver.StreamRequestHandler):
    def handle(self):
        self.say("220 relay")
        while command := self.rfile.readline().strip().upper():
            if command == b"DATA":
                self.say("354 go on")
                mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            self.say("221 bye" if command == b"QUIT" else "250 ok")
            if command == b"QUIT":
                break

    def say(self, line):
        self.wfile.write(f"{line}\r\n".encode())


def post(url, headers, body):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


request = json.loads(os.environ["HOOK_REQUEST"])
body, answers = request["body"].encode(), []
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as relay:
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    os.environ |= {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(relay.server_address[1]), "SEEN_FILE": "seen.db"}
    import page

    url = f"http://127.0.0.1:{page.server.server_address[1]}/"
    for sent in [body, body, body + b" "]:
        client = threading.Thread(target=lambda: answers.append(post(url, request["headers"], sent)))
        client.start()
        page.server.handle_request()
        client.join()
    page.server.server_close()
    page.seen.close()
    relay.shutdown()
assert answers == [204, 204, 400], answers
assert len(mails) == 1 and "To: guest@example.com" in mails[0] and "Subject: See you soon" in mails[0], mails
print(json.loads(body)["id"])
