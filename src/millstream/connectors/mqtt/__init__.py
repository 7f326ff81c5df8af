"""Topics of an MQTT 5 broker."""
