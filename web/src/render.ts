// Drawing the rectangles. Both renderers follow one rule, so that they give the same picture: a rectangle covers the
// pixels whose centre it contains, is at least a pixel wide (a spike must be seen) and, if it matches a search, at
// least a pixel high. No rectangle is ever larger than it is by more than that; those too thin to hold a centre drop
// out in proportion.

import { max, min, round, floor, ceil } from "./math";
import type { Device } from "./device";
import type { View } from "./app";

export interface Renderer {
  readonly kind: "webgl2" | "canvas";
  /** New allocations, or the same on another axis. */
  load(device: Device, xAt: (tick: number) => number): void;
  recolor(colors: Uint32Array): void;
  draw(view: View, back: [number, number, number], moving: boolean, tickAt: (x: number) => number): void;
}

/** Rectangles drawn while the view moves, the largest first; all of them when it rests. */
const WHILE_MOVING = 60_000;

/**
 * Allocations by decreasing area, coarsely: by the logarithm, which a counting sort does in linear time for a million.
 */
export function byArea(device: Device): Uint32Array {
  const { start, end, block } = device.rects;
  const n = device.n;
  const bucket = new Uint8Array(n);
  const counts = new Uint32Array(257);
  for (let i = 0; i < n; i++) {
    const area = (end[i] - start[i]) * (block[i] + 1);
    bucket[i] = 255 - min(255, floor(Math.log2(area + 1) * 3));
    counts[bucket[i] + 1]++;
  }
  for (let k = 1; k < 257; k++) counts[k] += counts[k - 1];
  const order = new Uint32Array(n);
  for (let i = 0; i < n; i++) order[counts[bucket[i]]++] = i;
  return order;
}

const VERTEX = `#version 300 es
precision highp float;
layout(location=0) in vec4 aX;
layout(location=1) in vec4 aY;
layout(location=2) in vec4 aColor;
uniform vec4 uX, uY;
flat out vec4 vColor;
flat out vec2 vSize;
out vec2 vAt;
void main() {
  // Values are split in two floats, and the view's origin too: the difference is exact where one float has too few
  // digits.
  float x0 = ((aX.x - uX.x) + (aX.y - uX.y)) * uX.z, x1 = ((aX.z - uX.x) + (aX.w - uX.y)) * uX.z;
  float y0 = ((aY.x - uY.x) + (aY.y - uY.y)) * uY.z, y1 = ((aY.z - uY.x) + (aY.w - uY.y)) * uY.z;
  x1 = max(x1, x0 + 1.0);
  if (aColor.a < 0.999) y1 = max(y1, y0 + 1.0);
  x0 = clamp(x0, -4.0, uX.w + 4.0); x1 = clamp(x1, -4.0, uX.w + 4.0);
  y0 = clamp(y0, -4.0, uY.w + 4.0); y1 = clamp(y1, -4.0, uY.w + 4.0);
  vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  vSize = vec2(x1 - x0, y1 - y0);
  vAt = corner * vSize;
  vColor = aColor;
  vec2 at = vec2(mix(x0, x1, corner.x), mix(y0, y1, corner.y));
  gl_Position = aColor.a == 0.0 ? vec4(2.0, 2.0, 0.0, 1.0) : vec4(at / vec2(uX.w, uY.w) * 2.0 - 1.0, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
flat in vec4 vColor;
flat in vec2 vSize;
in vec2 vAt;
uniform vec3 uBack;
uniform float uHair;
out vec4 color;
void main() {
  bool seam = (vSize.x > 4.0 * uHair && vSize.x - vAt.x < uHair) || (vSize.y > 4.0 * uHair && vSize.y - vAt.y < uHair);
  color = vec4(seam ? mix(vColor.rgb, uBack, 0.55) : vColor.rgb, 1.0);
}`;

export class GlRenderer implements Renderer {
  readonly kind = "webgl2";
  private readonly uniforms: Record<string, WebGLUniformLocation | null> = {};
  private readonly boxes: WebGLBuffer;
  private readonly paint: WebGLBuffer;
  private order: Uint32Array = new Uint32Array(0);
  private n = 0;

  private constructor(private readonly gl: WebGL2RenderingContext) {
    const program = gl.createProgram()!;
    for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]] as const) {
      const shader = gl.createShader(type)!;
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program) ?? "no program");
    gl.useProgram(program);
    for (const name of ["uX", "uY", "uBack", "uHair"]) this.uniforms[name] = gl.getUniformLocation(program, name);
    this.boxes = gl.createBuffer()!;
    this.paint = gl.createBuffer()!;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.boxes);
    for (const at of [0, 1]) {
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, 4, gl.FLOAT, false, 32, at * 16);
      gl.vertexAttribDivisor(at, 1);
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, this.paint);
    gl.enableVertexAttribArray(2);
    gl.vertexAttribPointer(2, 4, gl.UNSIGNED_BYTE, true, 4, 0);
    gl.vertexAttribDivisor(2, 1);
    gl.disable(gl.DEPTH_TEST);
    gl.disable(gl.BLEND);
  }

  /**
   * Null if the browser has no WebGL2 or, unless `anyway`, has it in software only: there each instance is a draw of
   * its own, and 60,000 of them take a second, while the canvas takes milliseconds.
   */
  static create(canvas: HTMLCanvasElement, anyway: boolean): GlRenderer | null {
    try {
      const gl = canvas.getContext("webgl2", { antialias: false, alpha: false, depth: false, failIfMajorPerformanceCaveat: !anyway });
      const info = gl?.getExtension("WEBGL_debug_renderer_info");
      if (!gl || (!anyway && info && /swiftshader|llvmpipe|softpipe|software|basic render/i.test(String(gl.getParameter(info.UNMASKED_RENDERER_WEBGL))))) return null;
      return new GlRenderer(gl);
    } catch {
      return null;
    }
  }

  load(device: Device, xAt: (tick: number) => number): void {
    const { gl } = this;
    this.order = byArea(device);
    this.n = device.n;
    const { start, end, block } = device.rects;
    const { y } = device.packed;
    const data = new Float32Array(device.n * 8);
    const split = (at: number, value: number) => {
      data[at] = value;
      data[at + 1] = value - data[at];
    };
    for (let k = 0; k < device.n; k++) {
      const i = this.order[k];
      split(k * 8, xAt(start[i]));
      split(k * 8 + 2, xAt(end[i]));
      split(k * 8 + 4, y[i]);
      split(k * 8 + 6, y[i] + block[i]);
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, this.boxes);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
  }

  recolor(colors: Uint32Array): void {
    const { gl } = this;
    const sorted = new Uint32Array(this.n);
    for (let k = 0; k < this.n; k++) sorted[k] = colors[this.order[k]];
    gl.bindBuffer(gl.ARRAY_BUFFER, this.paint);
    gl.bufferData(gl.ARRAY_BUFFER, sorted, gl.DYNAMIC_DRAW);
  }

  draw(view: View, back: [number, number, number], moving: boolean): void {
    const { gl } = this;
    const { width, height } = gl.canvas;
    gl.viewport(0, 0, width, height);
    const [r, g, b] = back.map((c) => c / 255);
    gl.clearColor(r, g, b, 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const x = Math.fround(view.x0);
    const y = Math.fround(view.y0);
    gl.uniform4f(this.uniforms.uX, x, view.x0 - x, width / (view.x1 - view.x0), width);
    gl.uniform4f(this.uniforms.uY, y, view.y0 - y, height / (view.y1 - view.y0), height);
    gl.uniform3f(this.uniforms.uBack, r, g, b);
    gl.uniform1f(this.uniforms.uHair, max(1, round(window.devicePixelRatio || 1)));
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, moving ? min(this.n, WHILE_MOVING) : this.n);
  }
}

export class CanvasRenderer implements Renderer {
  readonly kind = "canvas";
  private device: Device | null = null;
  private xAt: (tick: number) => number = (tick) => tick;
  private colors: Uint32Array = new Uint32Array(0);

  constructor(private readonly canvas: HTMLCanvasElement) {}

  load(device: Device, xAt: (tick: number) => number): void {
    this.device = device;
    this.xAt = xAt;
  }

  recolor(colors: Uint32Array): void {
    this.colors = colors;
  }

  draw(view: View, back: [number, number, number], moving: boolean, tickAt: (x: number) => number): void {
    const { width, height } = this.canvas;
    const context = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true })!;
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const [br, bg, bb] = back;
    const empty = ((255 << 24) | (bb << 16) | (bg << 8) | br) >>> 0;
    pixels.fill(empty);
    const device = this.device;
    if (device && this.colors.length === device.n) {
      const { start, end, block } = device.rects;
      const { y } = device.packed;
      const scaleX = width / (view.x1 - view.x0);
      const scaleY = height / (view.y1 - view.y0);
      const hair = max(1, round(window.devicePixelRatio || 1));
      let left = moving ? WHILE_MOVING * 4 : Infinity;
      device.alive(tickAt(view.x0), tickAt(view.x1) + 1, (i) => {
        const color = this.colors[i];
        if (color === 0 || left <= 0) return;
        const low = (y[i] - view.y0) * scaleY;
        let high = low + block[i] * scaleY;
        if (color >>> 24 === 254) high = max(high, low + 1);
        // Rows from the top: row r has its centre at height - r - 0.5.
        const top = max(0, ceil(height - high - 0.5));
        const bottom = min(height, ceil(height - low - 0.5));
        if (top >= bottom) return;
        const from = (this.xAt(start[i]) - view.x0) * scaleX;
        const to = max((this.xAt(end[i]) - view.x0) * scaleX, from + 1);
        const first = max(0, ceil(from - 0.5));
        const past = min(width, ceil(to - 0.5));
        if (first >= past) return;
        left--;
        const opaque = (color | 0xff000000) >>> 0;
        const seam = seamColor(opaque, br, bg, bb);
        const seamX = to - from > 4 * hair ? max(first, ceil(to - hair - 0.5)) : past;
        const seamRow = high - low > 4 * hair ? ceil(height - high - 0.5) + hair : top;
        for (let row = top; row < bottom; row++) {
          const at = row * width;
          if (row < seamRow) pixels.fill(seam, at + first, at + past);
          else {
            pixels.fill(opaque, at + first, at + seamX);
            if (seamX < past) pixels.fill(seam, at + seamX, at + past);
          }
        }
      });
    }
    context.putImageData(image, 0, 0);
  }
}

export function seamColor(color: number, r: number, g: number, b: number): number {
  const blend = (own: number, back: number) => round(own + (back - own) * 0.55);
  return ((255 << 24) | (blend((color >> 16) & 255, b) << 16) | (blend((color >> 8) & 255, g) << 8) | blend(color & 255, r)) >>> 0;
}
