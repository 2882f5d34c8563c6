"""Ends with status 0 if the service of this container answers; it prints whether the service leads or stands by.

MILLPOND_HEALTH_URL names another address. The certificate is not checked: the request does not leave the container.
"""

import os
import ssl
import urllib.request

url = os.environ.get("MILLPOND_HEALTH_URL", "https://localhost:8443/v1/health")
if not url.startswith(("https://", "http://")):
    raise SystemExit(f"{url} is no address of HTTP")
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
with urllib.request.urlopen(url, timeout=4, context=context) as answer:
    print(answer.read().decode())
