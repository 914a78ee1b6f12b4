// Package freezer keeps commands from being started in frozen boxes: some runtimes refuse that, others hang.
package freezer
