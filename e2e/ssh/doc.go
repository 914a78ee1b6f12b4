// Package ssh tests `ssh BOX@host` with the clients of OpenSSH and with hostile clients.
package ssh
