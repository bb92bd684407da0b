"""Django with the throttling of its REST framework, or with django-ratelimit (403)."""

import sys
from typing import Any

import django
from counting import serve_wsgi
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    SECRET_KEY="of a server that ends with the trial",  # noqa: S106
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
        "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "20/second"},
    },
)
django.setup()

if sys.argv[2] == "rest":
    from rest_framework.decorators import api_view
    from rest_framework.response import Response

    @api_view(["GET"])
    def page(request: Any) -> Any:
        """Answer."""
        return Response("Here you are.")

else:
    from django.http import HttpResponse
    from django_ratelimit.decorators import ratelimit

    @ratelimit(key="ip", rate="20/s", block=True)
    def page(request: Any) -> Any:
        """Answer."""
        return HttpResponse("Here you are.\n")


urlpatterns = [path("", page)]
serve_wsgi(get_wsgi_application())
