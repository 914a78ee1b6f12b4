// Package machines tests real virtual machines on the taps of boxes: QEMU with Debian's kernel for clouds. The program in them
// (guest) is this repository's own, and does what a test orders (orders).
package machines
