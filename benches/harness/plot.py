"""Line charts as SVG: with logarithmic axes, on which proportional growth is a straight line at 45 degrees, and over time."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 20, 40, 48
COLOURS = ["#2f7fb8", "#c9772b", "#5a9a4b"]
STYLE = "text{font:13px sans-serif;fill:#555}.title{font-size:15px}line{stroke:#8885}"


def line_chart(title, x_title, y_title, series):
    """Draws `series`, a dictionary of name to [(x, y)] with positive values, and labels each point with its value."""
    series = {name: sorted(points) for name, points in series.items() if points}
    every = [point for points in series.values() for point in points]
    spans = [span([point[axis] for point in every]) for axis in (0, 1)]
    place = lambda value, axis, room: room * (math.log10(value) - spans[axis][0]) / (spans[axis][1] - spans[axis][0])
    x_of = lambda value: LEFT + place(value, 0, WIDTH - LEFT - RIGHT)
    y_of = lambda value: HEIGHT - BOTTOM - place(value, 1, HEIGHT - TOP - BOTTOM)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>',
             f"<style>{STYLE}</style>", f'<text class="title" x="{LEFT}" y="22">{title}</text>',
             f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{x_title}</text>',
             f'<text x="{LEFT - 8}" y="{TOP - 6}" text-anchor="end">{y_title}</text>']
    for axis, (low, high) in enumerate(spans):
        for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1):
            value, label = 10.0 ** power, f"{10.0 ** power:g}"
            if axis == 0:
                parts.append(f'<line x1="{x_of(value):.1f}" y1="{TOP}" x2="{x_of(value):.1f}" y2="{HEIGHT - BOTTOM}"/>'
                             f'<text x="{x_of(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
            else:
                parts.append(f'<line x1="{LEFT}" y1="{y_of(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(value):.1f}"/>'
                             f'<text x="{LEFT - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{label}</text>')
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        above = -8 if number % 2 == 0 else 18
        for x, y in points:
            parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>'
                         f'<text x="{x_of(x):.1f}" y="{y_of(y) + above:.1f}" text-anchor="middle">{short(y)}</text>')
        parts.append(f'<text x="{LEFT + 12}" y="{TOP + 18 + 18 * number}" style="fill:{colour}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def time_chart(title, x_title, y_title, series):
    """Draws `series`, a dictionary of name to [(x, y)], on linear axes that begin at 0, with the last value of each."""
    every = [point for points in series.values() for point in points]
    most_x, most_y = (max(point[axis] for point in every) or 1 for axis in (0, 1))
    x_of = lambda value: LEFT + (WIDTH - LEFT - RIGHT) * value / most_x
    y_of = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / (1.1 * most_y)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>',
             f"<style>{STYLE}</style>", f'<text class="title" x="{LEFT}" y="22">{title}</text>',
             f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{x_title}</text>',
             f'<text x="{LEFT - 8}" y="{TOP - 6}" text-anchor="end">{y_title}</text>']
    for quarter in range(5):
        x, y = quarter * most_x / 4, quarter * most_y / 4
        parts.append(f'<line x1="{x_of(x):.1f}" y1="{TOP}" x2="{x_of(x):.1f}" y2="{HEIGHT - BOTTOM}"/>'
                     f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:.3g}</text>'
                     f'<line x1="{LEFT}" y1="{y_of(y):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(y):.1f}"/>'
                     f'<text x="{LEFT - 8}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
                     f'<text x="{LEFT + 12}" y="{HEIGHT - BOTTOM - 10 - 18 * number}" style="fill:{colour}">'
                     f"{name}: {short(points[-1][1])}</text>")
    return "\n".join(parts) + "\n</svg>\n"


def span(values):
    """Returns the logarithms of the ends of an axis that holds these values, with a margin."""
    low, high = math.log10(min(values)), math.log10(max(values))
    return (math.floor(low * 2) / 2 - 0.2, math.ceil(high * 2) / 2 + 0.2) if high > low else (low - 0.5, high + 0.5)


def short(value):
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"
