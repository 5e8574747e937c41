#!/bin/sh
# RUSTC_WRAPPER of `cargo xtask bench build`: runs rustc, and leaves its CPU time in a file of $CPU_LOG named after the
# crate.
"$@"
code=$?
name=rustc
while [ $# -gt 0 ]; do
    [ "$1" = --crate-name ] && name=$2
    shift
done
times > "$CPU_LOG/$name-$$"
exit $code
