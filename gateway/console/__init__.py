"""The web console under ``/console``: pages made on the server, over the admin API that runs in the same process.

Only `gateway.server` may import it. It reads and changes nothing itself: each page asks routes of the admin API in the
name of whoever has the session, so permissions, records and error texts are those of the API.
"""
