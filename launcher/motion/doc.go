// Package motion keeps commands from being started in boxes that stand still: some runtimes refuse that, with others it hangs.
package motion
