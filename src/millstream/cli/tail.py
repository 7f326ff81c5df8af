import click


@click.command()
def tail() -> None:
    """Follow a view."""
