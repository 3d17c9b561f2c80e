"""The HTTP server of one node, with or without its page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from node.admin.node_answers import NodeAnswers
from node.admin.page_keys import PageKeys
from node.admin.tokens import Tokens
from node.clock import Clock
from node.config.node_config import NodeConfig
from node.telemetry.http_server import HttpServer
from node.telemetry.http_tls import HttpTls
from node.telemetry.http_token import HttpToken

if TYPE_CHECKING:
    from node.telemetry.metrics import NodeMetrics

log = logging.getLogger(__name__)


def make_http(
    config: NodeConfig,
    answers: NodeAnswers,
    *,
    clock: Clock,
    keys: PageKeys | None,
    token: HttpToken,
    tls: HttpTls | None,
    metrics: NodeMetrics | None,
    origins: Mapping[str, str],
    options: Sequence[str] | None,
    describe_unready: Callable[[], str | None],
) -> HttpServer:
    """Makes the server. Without `keys` there is no page, and without `metrics` there are no metrics."""
    site = None
    if config.http.page and config.http.withholds_page:
        log.warning(
            "the page is not served at %s: beyond loopback it takes http.tls, or something with TLS in front of it "
            "(http.tls_in_front)",
            config.http.listen,
        )
    if keys is not None:
        from node.web.wiring import make_site  # not loaded where there is no page

        site = make_site(
            answers,
            keys=keys,
            tokens=Tokens(config.node.data_dir),
            shown=token,
            origins=origins,
            data=config.get_data(),
            clock=clock,
            socket=config.admin.socket,
            options=options,
        )
    return HttpServer(config.http, describe_unready, metrics, token=token, tls=tls, site=site)
