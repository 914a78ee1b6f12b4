// Package keyring encrypts the store's data key by age, to a key file or a passphrase.
package keyring
