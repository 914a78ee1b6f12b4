// Package packages tests the installed artifacts end to end: the Debian package, the container image, the confinement
// of the systemd unit, and uninstallation.
package packages
