// Package systemd implements the protocol between the gateway and the service manager that started it: notifications of
// its state and main process, and the sockets that the manager keeps open while the gateway restarts (sd_notify(3),
// sd_listen_fds(3)). Without a service manager all functions are no-ops.
package systemd
