// Package systemd is what the gateway and the service manager that started it say to each other: how far the gateway is, which
// process it is, and the sockets that the manager keeps open while the gateway restarts (sd_notify(3), sd_listen_fds(3)). Without
// a service manager nothing here does anything.
package systemd
