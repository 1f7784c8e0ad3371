"""What a container or process gets for its grant: directory, CDI spec, OCI edits, environment."""
