package store

import "errors"

// Errors for errors.Is. Every other error means that the file could not be read or written.
var (
	ErrNotFound     = errors.New("not found")
	ErrNameTaken    = errors.New("the name is in use by another box")
	ErrKeyNameTaken = errors.New("the name is in use by another API key")
	ErrManyKeys     = errors.New("there are too many API keys")
	ErrHostTaken    = errors.New("the host name is in use by another public URL")
	ErrHostUnproven = errors.New("control of the host name is not proven")
	ErrExhausted    = errors.New("every address of the pools is in use")
	ErrInUse        = errors.New("another gateway is using the store")
	ErrPassphrase   = errors.New("the passphrase is wrong")
	ErrConflict     = errors.New("changed concurrently")
)
