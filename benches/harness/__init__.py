"""Modules that benches/fleet, benches/scale and benches/probe share."""
