// Package sshd serves `ssh BOX@host`: a terminal, commands, SFTP and connections to ports of one box, for clients with an API
// key. It speaks SSH (RFC 4251 to 4254) by golang.org/x/crypto/ssh, bounds what clients can make the gateway hold, and refuses
// everything else that the protocol offers: forwarded ports of the client, sockets, agents, displays, tunnels.
//
// The user name is the ID or the name of a box. This package neither knows the boxes nor the keys: [Gate] decides about each login
// and does the work in the box, with the permissions, quotas and records of the admin API.
//
// Before it has logged in, a client is a stranger: it has half a minute, and the listener bounds the number of strangers. Each login
// that fails looks the same, whether the box, the key or the permission is missing.
package sshd
