"""Paths of the shop."""

from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/<int:number>", views.put_order),
    path("orders/<int:number>/payment", views.pay),
    path("orders/<int:number>/stage", views.stage),
    path("orders/<int:number>/greeting", views.greeting),
]
