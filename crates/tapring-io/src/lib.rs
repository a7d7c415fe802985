//! The tap over io_uring: frames in, completions out.
