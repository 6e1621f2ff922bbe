"""`ollama-proxy-plus`, and a memory of what it was asked: GET /seen lists method, path and JSON body.

The proxy ignores options that its own provider has no word for (`num_ctx`, `keep_alive`), so that only
the request itself can show that they arrived.
"""

import json
import sys

import uvicorn
from fastapi import Request
from ollama_proxy.server import app

seen = []


@app.middleware("http")
async def remember(request: Request, call_next):
    body = await request.body()
    if request.method == "POST":
        seen.append({"path": request.url.path, "body": json.loads(body or b"null")})
    return await call_next(request)


@app.get("/seen")
async def everything():
    return seen


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
