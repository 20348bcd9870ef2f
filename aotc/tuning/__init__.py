"""Choosing by measurement: ``aotc tune`` times what schedules could choose, here or on boards, and keeps what is faster."""
