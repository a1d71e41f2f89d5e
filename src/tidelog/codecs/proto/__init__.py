"""Wire messages as protoc writes them; the .proto files are the source (`make proto`)."""
