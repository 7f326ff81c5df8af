import click


@click.command()
def send() -> None:
    """Follow a view."""
