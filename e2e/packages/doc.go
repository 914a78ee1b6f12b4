// Package packages tests the installed artifacts end to end: the Debian and RPM packages, the container image, the confinement
// of the systemd unit, and uninstallation.
package packages
