module apart
