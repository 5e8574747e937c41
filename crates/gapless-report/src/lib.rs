//! Findings and their renderers: values in, text, JSON or a page out.

pub mod html;
