"""What is inside a container: its variables, folders and volumes, and what of it is the appliance's own."""
