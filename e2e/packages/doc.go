// Package packages has end-to-end tests of what people install: the Debian package, the container image, the unit's
// confinement, and taking all of it away again.
package packages
