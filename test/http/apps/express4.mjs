import express from 'express4'
import { serve } from './express.mjs'

serve(express)
