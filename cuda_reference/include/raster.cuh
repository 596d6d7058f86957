// The order in which output tiles are computed: tile number -> tile coordinates.
#pragma once

#include "abi.cuh"

constexpr int STRIPE = 16;  // tile columns of a stripe in the serpentine order

struct Tile {
    int row, col;  // in tiles
};

// linear      row after row of tiles
// serpentine  stripes of STRIPE tile columns, walked row by row, odd stripes from the bottom up
// grouped     groups of `group` tile rows, walked column by column
// Blocks start in about the order of their numbers. Only speed depends on that, never the result.
__device__ inline Tile raster(int tile, int rows, int cols, int order, int group) {
    if (order == SERPENTINE) {
        const int stripe = tile / (STRIPE * rows);
        const int width = min(cols - stripe * STRIPE, STRIPE);
        const int inside = tile - stripe * STRIPE * rows;
        const int row = inside / width;
        return {stripe % 2 ? rows - 1 - row : row, stripe * STRIPE + inside % width};
    }
    if (order == GROUPED) {
        const int first = tile / (group * cols) * group;
        const int height = min(rows - first, group);
        const int inside = tile - first * cols;
        return {first + inside % height, inside / height};
    }
    return {tile / cols, tile % cols};
}
