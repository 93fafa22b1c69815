"""What benches/fleet, benches/scale and benches/guard share."""
